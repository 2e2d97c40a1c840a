// A value that is made inside of an op is not read before that op.
// RUN: not stagec-opt %s 2>&1 | filecheck %s

// CHECK:      error[E0709]: `stg.mul` reads a value before it is made
!t = !stg.tensor<[B], bf16>
builtin.module {
stg.dim "B" = "8"
%2 = stg.mul %0, %x : (!t, !t) -> !t
stg.program "M" (%x : !t) {
  %y = stg.repeat "4" carry(%carried = %x : !t) -> (!t) {
    %0 = stg.unary "relu" %carried : (!t) -> !t
    stg.yield %0 : !t
  }
  stg.output
}
}
