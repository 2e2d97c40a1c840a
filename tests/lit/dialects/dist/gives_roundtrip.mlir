// A cache that another pool gets: where that one's ranks begin, its mesh, how it holds the cache, and where its layers are.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: dist.gives "Attention.k" to "decode" from 8 mesh <dp = 2, tp = 8> as <[B/dp, T.stored, K/tp, E], bf16> moving "8192*E*K" channel 0 microbatches 1
dist.gives "Attention.k" to "decode" from 8 mesh <dp = 2, tp = 8> as <[B/dp, T.stored, K/tp, E], bf16> moving "8192*E*K" channel 0 microbatches 1

// CHECK: dist.gives "Attention.v" to "decode" from 8 mesh <pp = 2> as <[B, T.stored, K, E], fp8> moving "8192*E*K" channel 1 microbatches 2 stages "pp" <0 x 3, 1 x 2>
dist.gives "Attention.v" to "decode" from 8 mesh <pp = 2> as <[B, T.stored, K, E], fp8> moving "8192*E*K" channel 1 microbatches 2 stages "pp" <0 x 3, 1 x 2>
