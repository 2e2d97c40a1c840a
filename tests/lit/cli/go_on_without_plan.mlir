// IR that names no plan is not a whole program.
// RUN: not stagec %s 2>&1 | filecheck %s

// CHECK: error[E0716]: there is no `dist.plan` in the IR, which says what is compiled
// CHECK: = help: start from what `stagec MODEL.stg --stop-after PASS` prints
stg.program "M" () {
  stg.output
}
