// Work with its costs, which are expressions, and its stream.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x, %w = "test.op"() : () -> (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[D, F/tp], bf16>)

// CHECK: %y = sched.compute "contract"(%x, %w) flops "2*B*D*F*S/(dp*tp)" reads "2*B*D*S/dp + 2*D*F/tp" writes "2*B*F*S/(dp*tp)" on "compute" : (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[B/dp, S, F/tp], bf16>
%y = sched.compute "contract" (%x, %w) flops "2*B*D*F*S/(dp*tp)" reads "2*B*D*S/dp + 2*D*F/tp" writes "2*B*F*S/(dp*tp)" on "compute"
  : (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[B/dp, S, F/tp], bf16>

// CHECK: sched.compute "gate"(%x, %w) flops "2*B" reads "0" writes "0" on "compute" as product {scope = "Net"} :
%gate = sched.compute "gate" (%x, %w) flops "2*B" reads "0" writes "0" on "compute" as product {scope = "Net"}
  : (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[B/dp, S, F/tp], bf16>

// CHECK: sched.compute "optimizer_step"(%w) flops "0" reads "1" writes "0" on "compute" {phase = "optim"} : (!stg.tensor<[D, F/tp], bf16>) -> ()
sched.compute "optimizer_step" (%w) flops "0" reads "1" writes "0" on "compute" {phase = "optim"}
  : (!stg.tensor<[D, F/tp], bf16>) -> ()

// CHECK: sched.compute "loop"(%x) flops "2*B" reads "0" writes "0" on "compute" kernels "34" :
sched.compute "loop" (%x) flops "2*B" reads "0" writes "0" on "compute" kernels "34" : (!stg.tensor<[B/dp, S, D], bf16>) -> ()

// CHECK: sched.compute "widened"(%x) flops "0" reads "2*B*D*S" writes "4*B*D*S" on "compute" scalars "B*D*S" :
sched.compute "widened" (%x) flops "0" reads "2*B*D*S" writes "4*B*D*S" on "compute" scalars "B*D*S" : (!stg.tensor<[B/dp, S, D], bf16>) -> ()

// A kernel of a window of attention.
// CHECK: sched.compute "attention"(%x, %w) flops "2*B" reads "0" writes "0" on "compute" window "128" :
sched.compute "attention" (%x, %w) flops "2*B" reads "0" writes "0" on "compute" window "128"
  : (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> ()
