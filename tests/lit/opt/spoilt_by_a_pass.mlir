// IR that a pass leaves and that does not verify: which pass it was, and how to look at what it leaves.
// RUN: not stagec-opt %s --load-pass %S/inputs/spoils.py -p cse,spoils,canonicalize 2>&1 | filecheck %s
// RUN: stagec-opt %s --load-pass %S/inputs/spoils.py -p spoils --disable-verify | filecheck %s --check-prefix LEFT

// CHECK:      error[E0709]: `dist.all_reduce`: <[S, D], bf16, partial [tp]> becomes <[S, D], bf16>, not
// CHECK-NEXT: --> {{.*}}spoilt_by_a_pass.mlir:[[# @LINE + 7]]:1
// CHECK:      = note: after the pass `spoils`
// CHECK-NEXT: = help: mend the pass: `--disable-verify` prints what it leaves, `--print-between-passes` what it was given
// CHECK-NOT:  error

%p = "test.op"() : () -> !stg.tensor<[S, D], bf16, partial [tp]>
// LEFT: -> !stg.tensor<[S, D], bf16, partial [tp]>
%a = dist.all_reduce "sum" %p over [tp] : !stg.tensor<[S, D], bf16, partial [tp]> -> !stg.tensor<[S, D], bf16>
"test.op"(%a) : (!stg.tensor<[S, D], bf16>) -> ()
