// A number of the program's text.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: %c = stg.constant "0.5" : !stg.tensor<[], fp32>
%c = stg.constant "0.5" : !stg.tensor<[], fp32>
