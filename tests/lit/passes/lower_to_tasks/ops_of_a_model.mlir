// An op that a model declares is called by its own name, and so is its gradient.
// RUN: stagec-opt %s -p lower-to-tasks | filecheck %s

dist.mesh <dp = 2>
%x = "test.op"() : () -> !stg.tensor<[B/dp, D], bf16>
// CHECK: sched.compute "mixer"(%x) flops "3*B*D/dp"
%y = stg.user "mixer" (%x) flops "3*B*D" bytes "B" backward_flops "6*B*D" backward_bytes "B"
  : (!stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[B/dp, D], bf16>
// CHECK: sched.compute "mixer_grad"(%y, %x) flops "6*B*D/dp"
%dx = stg.user_grad "mixer" (%y, %x) flops "6*B*D" bytes "B"
  : (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[B/dp, D], bf16>
