// What two stages have is a term of the norm once, of the first of them; both look whether it is finite.
// RUN: stagec-opt %s -p 'clip-gradients{norm=true finite=true axis="pp"}' | filecheck %s

!t = !stg.tensor<[V, D], fp32>
dist.mesh <pp = 2>
sched.schedule "1f1b" ranks "pp" virtual 1 microbatches "2"
dist.stages ["first", "last"] over "pp"
stg.program "M" () attributes {kind = "first"} {
  %w = stg.weight "embed" : !t
  %g = "test.op"() : () -> !t
  // CHECK: stg.gradient_statistic "finite"(%g)
  // CHECK: stg.gradient_statistic "norm"(%g)
  stg.optimizer_step "adamw" states "fp32" (%w) from (%g) {phase = "optim"} : !t from !t
  stg.output
}
stg.program "M" () attributes {kind = "last"} {
  %w = stg.weight "embed" : !t
  %v = stg.weight "head" : !t
  %g, %h = "test.op"() : () -> (!t, !t)
  // CHECK: stg.gradient_statistic "finite"(%g_1, %h)
  // CHECK: stg.gradient_statistic "norm"(%h)
  stg.optimizer_step "adamw" states "fp32" (%w, %v) from (%g, %h) {phase = "optim"} : !t, !t from !t, !t
  stg.output
}
