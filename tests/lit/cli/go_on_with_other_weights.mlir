// What stays from step to step is of weights and caches that there are.
// RUN: not stagec %s 2>&1 | filecheck %s
stg.dim "D" = "8"
dist.mesh <dp = 2>
dist.plan "p" batch "B" {} at {}
dist.passes []
stg.program "M" () {
  %w = stg.weight "w" : !stg.tensor<[D], bf16>
  stg.output
}
// CHECK: error[E0709]: `sched.stored`: there is no weight or cache `v`
sched.stored of "" {"v" parameters "16"}
sched.tasks @model of "" layers {} {}
sched.program @all runs [0 @model] order ""
sched.ranks "all" at {} run @all
