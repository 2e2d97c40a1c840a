// Weights, tokens and gradients of experts are as many as a rank has; what is exchanged is as large for all, and what is whole stays.
// RUN: stagec-opt %s -p 'split-unevenly' | filecheck %s

// CHECK:      stg.dim "X.part" = "ep*ceildiv(X - ep.index, ep)" parts "X"
// CHECK-NEXT: stg.dim "X.part.max" = "ep*ceildiv(X, ep)"
stg.dim "L" = "3"
stg.dim "X" = "10"
stg.dim "T" = "64"
dist.mesh <edp = 2, ep = 4>
dist.rule [X] over [ep] uneven "balanced"
stg.program "M" (%r : !stg.tensor<[X, T/(edp*ep), D], bf16>) {
  // CHECK: stg.weight "router" : !stg.tensor<[D, X], bf16>
  %q = stg.weight "router" : !stg.tensor<[D, X], bf16>
  // CHECK: stg.weight "w" : !stg.stack<"L" x !dist.shard<!stg.tensor<[X.part/ep, D, F], bf16> over [edp]>>
  %w = stg.weight "w" : !stg.stack<"L" x !dist.shard<!stg.tensor<[X/ep, D, F], bf16> over [edp]>>
  // CHECK: stg.weight "v" : !stg.tensor<[X.part/ep, D, F], bf16>
  %v = stg.weight "v" : !stg.tensor<[X/ep, D, F], bf16>
  // CHECK: dist.all_to_all %r gather "T" scatter "X" over [ep] uneven [X] : {{.*}} -> !stg.tensor<[X.part/ep, T/edp, D], bf16>
  %e = dist.all_to_all %r gather "T" scatter "X" over [ep] : !stg.tensor<[X, T/(edp*ep), D], bf16> -> !stg.tensor<[X/ep, T/edp, D], bf16>
  // CHECK: %y = stg.contract {{.*}} -> !stg.tensor<[X.part/ep, T/edp, F], bf16>
  %y = stg.contract %e, %v over [D] : (!stg.tensor<[X/ep, T/edp, D], bf16>, !stg.tensor<[X/ep, D, F], bf16>) -> !stg.tensor<[X/ep, T/edp, F], bf16>
  // CHECK: %b = dist.all_to_all %e gather "X" scatter "T" over [ep] uneven [X] : {{.*}} -> !stg.tensor<[X, T/(edp*ep), D], bf16>
  %b = dist.all_to_all %e gather "X" scatter "T" over [ep] : !stg.tensor<[X/ep, T/edp, D], bf16> -> !stg.tensor<[X, T/(edp*ep), D], bf16>
  stg.output
}
