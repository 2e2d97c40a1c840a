// What a program reads stands in it.
// RUN: not stagec-opt %s -p 'build-backward' 2>&1 | filecheck %s

!t = !stg.tensor<[D], bf16>
builtin.module {
  stg.dim "D" = "8"
  dist.mesh <dp = 2>
  %w = stg.weight "w" : !t
  stg.program "M" (%x : !t) {
    %y = stg.mul %x, %w : (!t, !t) -> !t
    %l = stg.reduce "sum" %y over [D] : (!t) -> !stg.tensor<[], bf16>
    stg.output %l : !stg.tensor<[], bf16>
  }
}

// CHECK: error[E0709]: `stg.weight` is outside of the `stg.program` that reads it
