// A send to a neighbouring stage has a stream of its own.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%h = "test.op"() : () -> !stg.tensor<[B/(mb*dp), S, D], bf16>

// CHECK: sched.stage_send "forward" 0 %h on "p2p.send" : !stg.tensor<[B/(mb*dp), S, D], bf16>
sched.stage_send "forward" 0 %h on "p2p.send" : !stg.tensor<[B/(mb*dp), S, D], bf16>
