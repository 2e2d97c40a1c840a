// How busy experts are: by an exponent and a seed, or share by share.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: dist.expert_load "T.load" of "T" experts "X" chosen [B, S, A] over [ep] among [mb, edp] zipf "1.2" seed 3
dist.expert_load "T.load" of "T" experts "X" chosen [B, S, A] over [ep] among [mb, edp] zipf "1.2" seed 3

// CHECK: dist.expert_load "U.load" of "U" experts "X" chosen [B, S, A] over [ep] among [] shares ["3 1 1 1", "1 1 1 3"]
dist.expert_load "U.load" of "U" experts "X" chosen [B, S, A] over [ep] among [] shares ["3 1 1 1", "1 1 1 3"]

// CHECK: dist.expert_load "V.load" of "V" experts "X" chosen [B, S, A] over [en, el] among [mb] copies [V.outer, V.inner] groups "8" limit "4" zipf "1.2" seed 3
dist.expert_load "V.load" of "V" experts "X" chosen [B, S, A] over [en, el] among [mb] copies [V.outer, V.inner] groups "8" limit "4" zipf "1.2" seed 3

%r = "test.op"() : () -> !stg.tensor<[X, T/(edp*ep), D], bf16>

// CHECK: dist.all_to_all %r gather "T" scatter "X" over [ep] load "T.load" : !stg.tensor<[X, T/(edp*ep), D], bf16> -> !stg.tensor<[X/ep, T.load/edp, D], bf16>
%e = dist.all_to_all %r gather "T" scatter "X" over [ep] load "T.load" : !stg.tensor<[X, T/(edp*ep), D], bf16> -> !stg.tensor<[X/ep, T.load/edp, D], bf16>

%c = "test.op"() : () -> !stg.tensor<[P, U.sent/en, D], bf16>

// CHECK: dist.all_to_all %c gather "U" scatter "P" over [en] load "U.load" : !stg.tensor<[P, U.sent/en, D], bf16> -> !stg.tensor<[P/en, U.load, D], bf16>
%d = dist.all_to_all %c gather "U" scatter "P" over [en] load "U.load" : !stg.tensor<[P, U.sent/en, D], bf16> -> !stg.tensor<[P/en, U.load, D], bf16>
