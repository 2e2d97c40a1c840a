// What says its plan is a whole program: what `stagec` would not go on from, no pass is run on. Ops are shown where they stand, not in the model.
// RUN: not stagec-opt %s -p lower-to-tasks 2>&1 | filecheck %s
// RUN: not stagec %s 2>&1 | filecheck %s
// RUN: stagec-opt %s --disable-verify | filecheck %s --check-prefix UNVERIFIED

// CHECK:      error[E0709]: `sched.tasks`: there is no `stg.program` of the kind `middle`
// CHECK-NEXT:  --> {{.*}}whole_program.mlir:16:1
// UNVERIFIED: sched.tasks @middle
stg.dim "B" = "8"
dist.mesh <dp = 2>
dist.plan "p" batch "B" {} at {}
dist.passes []
stg.program "M" () {
  stg.output
}
sched.tasks @middle of "middle" layers {} {} loc("net.stg":7:9)
