// What passes said of an op holds of its task.
// RUN: stagec-opt %s -p lower-to-tasks | filecheck %s

dist.mesh <tp = 4>
stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  // CHECK: sched.compute "unary"(%x) {{.*}}scope = "Block", phase = "bwd"
  %y = stg.unary "silu" %x {phase = "bwd", scope = "Block"} : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
  stg.output
}
