// A step on the host, with its FLOPs and the bytes of the host's memory that it moves.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%g, %m = "test.op"() : () -> (!stg.tensor<[D], bf16>, !stg.tensor<[D], fp32>)

// CHECK: %n = sched.host_update(%g, %m) flops "9*D" bytes "12*D" on "host.update" effects <overwrites 1 by 0 makes host> {phase = "optim"} :
%n = sched.host_update (%g, %m) flops "9*D" bytes "12*D" on "host.update" effects <overwrites 1 by 0 makes host> {phase = "optim"}
  : (!stg.tensor<[D], bf16>, !stg.tensor<[D], fp32>) -> !stg.tensor<[D], fp32>
