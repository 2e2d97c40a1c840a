// The gradient of what one layer reads is scattered whole, beside the gradient of its weight, and what that reads is gathered in front of both products.
// RUN: stagec-opt %s -p 'split-products{pieces=4}' --split-input-file | filecheck %s
// RUN: stagec-opt %s -p 'split-products{pieces=4 bulk=false}' --split-input-file | filecheck %s --check-prefix CUT

dist.mesh <tp = 2>
stg.dim "S" = "8"
stg.program "M" (%x : !stg.tensor<[S/tp, D], bf16>, %dy : !stg.tensor<[S, F/tp], bf16>) {
  %w = stg.weight "w" : !stg.tensor<[D, F/tp], bf16>
  // CHECK:      %[[X:.*]] = dist.all_gather %x dim "S" over [tp]
  // CHECK-NEXT: %[[DX:.*]] = stg.contract %dy, %w
  // CHECK-NEXT: %[[PART:.*]] = dist.reduce_scatter %[[DX]] dim "S" over [tp] {phase = "bwd"}
  // CHECK-NEXT: stg.contract %dy, %[[X]]
  // CHECK-NEXT: "test.op"(%[[PART]],
  // CUT:        stg.repeat "tp.piece"
  // CUT-NEXT:   stg.contract
  // CUT-NEXT:   dist.reduce_scatter
  // CUT:        dist.all_gather
  // CUT-NEXT:   stg.contract
  %dx = stg.contract %dy, %w over [F] {phase = "bwd"} : (!stg.tensor<[S, F/tp], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S, D], bf16, partial [tp]>
  %part = dist.reduce_scatter %dx dim "S" over [tp] {phase = "bwd"} : !stg.tensor<[S, D], bf16, partial [tp]> -> !stg.tensor<[S/tp, D], bf16>
  %g = dist.all_gather %x dim "S" over [tp] {phase = "wgrad"} : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S, D], bf16>
  %dw = stg.contract %dy, %g over [S] {phase = "wgrad"} : (!stg.tensor<[S, F/tp], bf16>, !stg.tensor<[S, D], bf16>) -> !stg.tensor<[F/tp, D], bf16>
  "test.op"(%part, %dw) : (!stg.tensor<[S/tp, D], bf16>, !stg.tensor<[F/tp, D], bf16>) -> ()
  stg.output
}

// -----

// A frozen weight has no gradient that could run meanwhile.
dist.mesh <tp = 2>
stg.dim "S" = "8"
stg.program "Frozen" (%dy : !stg.tensor<[S, F/tp], bf16>) {
  %w = stg.weight "w" : !stg.tensor<[D, F/tp], bf16>
  // CHECK:      stg.program "Frozen"
  // CHECK:      stg.repeat "tp.piece"
  // CHECK-NEXT: stg.contract
  // CHECK-NEXT: dist.reduce_scatter
  %dx = stg.contract %dy, %w over [F] {phase = "bwd"} : (!stg.tensor<[S, F/tp], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S, D], bf16, partial [tp]>
  %part = dist.reduce_scatter %dx dim "S" over [tp] {phase = "bwd"} : !stg.tensor<[S, D], bf16, partial [tp]> -> !stg.tensor<[S/tp, D], bf16>
  "test.op"(%part) : (!stg.tensor<[S/tp, D], bf16>) -> ()
  stg.output
}

// -----

// Nothing is gathered before it is there, and a forward pass's sum stays in pieces beside a gradient that reads what its product reads.
// Where something is in pieces, products leave the rest the multiprocessors that it takes.
dist.mesh <tp = 2>
stg.dim "S" = "8"
stg.program "Later" (%x : !stg.tensor<[S/tp, D], bf16>, %dy : !stg.tensor<[S, F/tp], bf16>) {
  %w = stg.weight "w" : !stg.tensor<[D, F/tp], bf16>
  // CHECK:      stg.program "Later"
  // CHECK:      %[[DX:.*]] = stg.contract %dy, %w
  // CHECK-NEXT: dist.reduce_scatter %[[DX]] dim "S" over [tp] {phase = "bwd", leaves_units}
  // CHECK:      %[[LATE:.*]] = stg.unary "exp"
  // CHECK-NEXT: dist.all_gather %[[LATE]] dim "S" over [tp] {phase = "wgrad", leaves_units}
  // CHECK-NEXT: stg.contract
  // CHECK:      stg.repeat "tp.piece"
  // CHECK-NEXT: stg.contract
  // CHECK-NEXT: dist.reduce_scatter
  %dx = stg.contract %dy, %w over [F] {phase = "bwd"} : (!stg.tensor<[S, F/tp], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S, D], bf16, partial [tp]>
  %part = dist.reduce_scatter %dx dim "S" over [tp] {phase = "bwd"} : !stg.tensor<[S, D], bf16, partial [tp]> -> !stg.tensor<[S/tp, D], bf16>
  %late = stg.unary "exp" %x : (!stg.tensor<[S/tp, D], bf16>) -> !stg.tensor<[S/tp, D], bf16>
  %g = dist.all_gather %late dim "S" over [tp] {phase = "wgrad"} : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S, D], bf16>
  %dw = stg.contract %dy, %g over [S] {phase = "wgrad"} : (!stg.tensor<[S, F/tp], bf16>, !stg.tensor<[S, D], bf16>) -> !stg.tensor<[F/tp, D], bf16>
  %y = stg.contract %dy, %w over [F] : (!stg.tensor<[S, F/tp], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S, D], bf16, partial [tp]>
  %sum = dist.reduce_scatter %y dim "S" over [tp] : !stg.tensor<[S, D], bf16, partial [tp]> -> !stg.tensor<[S/tp, D], bf16>
  "test.op"(%part, %dw, %sum) : (!stg.tensor<[S/tp, D], bf16>, !stg.tensor<[F/tp, D], bf16>, !stg.tensor<[S/tp, D], bf16>) -> ()
  stg.output
}
