// What an iteration carries is not read outside of the repeat.
// RUN: not stagec-opt %s 2>&1 | filecheck %s

// CHECK:      error[E0709]: `stg.unary` reads a value before it is made, or outside of its region
!t = !stg.tensor<[B], bf16>
builtin.module {
stg.dim "B" = "8"
stg.program "M" (%x : !t) {
  %z = stg.unary "relu" %carried : (!t) -> !t
  %y = stg.repeat "4" carry(%carried = %x : !t) -> (!t) {
    %0 = stg.unary "relu" %carried : (!t) -> !t
    stg.yield %0 : !t
  }
  stg.output
}
}
