// Gathering the major of two axes would bring the pieces into another order.
// RUN: not stagec-opt %s -p insert-collectives 2>&1 | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[S/(tp*cp), D], bf16>
%r = dist.reshard %x : !stg.tensor<[S/(tp*cp), D], bf16> -> !stg.tensor<[S/cp, D], bf16>

// CHECK:      error[E0307]: a value split as [S/(tp*cp), D] cannot become [S/cp, D]: gathering the major axis of a dim alone would permute it
// CHECK-NEXT:  --> {{.*}}permutes.mlir:5:1
// CHECK-NEXT:   |
// CHECK-NEXT: 5 | %r = dist.reshard %x
// CHECK-NEXT:   | ^
// CHECK-NEXT:   = help: split `S` over `cp, tp`, in this order, wherever the plan splits it over these axes
