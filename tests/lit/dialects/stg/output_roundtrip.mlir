// What a program computes, and the gradient of each weight.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%loss, %w, %g = "test.op"() : () -> (!stg.tensor<[], fp32>, !stg.tensor<[D], bf16>, !stg.tensor<[D], fp32, partial [dp]>)
stg.program "nothing" () {
  // CHECK: stg.output{{$}}
  stg.output
}
stg.program "loss" () {
  // CHECK: stg.output %loss : !stg.tensor<[], fp32>{{$}}
  stg.output %loss : !stg.tensor<[], fp32>
}
stg.program "gradients" () {
  // CHECK: stg.output %loss : !stg.tensor<[], fp32> weights %w : !stg.tensor<[D], bf16> gradients %g : !stg.tensor<[D], fp32, partial [dp]>
  stg.output %loss : !stg.tensor<[], fp32> weights %w : !stg.tensor<[D], bf16> gradients %g : !stg.tensor<[D], fp32, partial [dp]>
}
