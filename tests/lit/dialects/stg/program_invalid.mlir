// A program has a body of one block.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.program`: region 'body' at position 0 expected a single block, but got 2 blocks
"stg.program"() <{model = "M"}> ({
^one:
  stg.output
^two:
  stg.output
}) : () -> ()
