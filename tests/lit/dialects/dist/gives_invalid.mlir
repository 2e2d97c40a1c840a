// Stages of the other pool are along an axis that it has, at places that there are.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.gives`: the other pool has no axis `pp`
dist.gives "k" to "decode" from 8 mesh <tp = 2> as <[B, T.stored, K, E], fp8> moving "8192*E*K" channel 1 microbatches 2 stages "pp" <0 x 3>

// -----

// CHECK: error[E0709]: `dist.gives`: there is no stage 2 in the other pool
dist.gives "k" to "decode" from 8 mesh <pp = 2> as <[B, T.stored, K, E], fp8> moving "8192*E*K" channel 1 microbatches 2 stages "pp" <0 x 3, 2 x 1>
