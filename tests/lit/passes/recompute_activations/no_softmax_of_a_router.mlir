// A softmax between products with weights is none of attention.
// RUN: not stagec-opt %s -p 'recompute-activations{what="attention" modules="Router"}' 2>&1 | filecheck %s

// CHECK:      error[E0401]: there is no `attention` in `Router` to recompute
stg.program "M" (%x : !stg.tensor<[S, D], bf16>) {
  %w = stg.weight "w" : !stg.tensor<[D, X], bf16>
  %v = stg.weight "v" : !stg.tensor<[X, D], bf16>
  %l = stg.contract %x, %w over [D] {scope = "Router"}
    : (!stg.tensor<[S, D], bf16>, !stg.tensor<[D, X], bf16>) -> !stg.tensor<[S, X], bf16>
  %p = stg.softmax %l over [X] {scope = "Router"} : (!stg.tensor<[S, X], bf16>) -> !stg.tensor<[S, X], bf16>
  %y = stg.contract %p, %v over [X] {scope = "Router"}
    : (!stg.tensor<[S, X], bf16>, !stg.tensor<[X, D], bf16>) -> !stg.tensor<[S, D], bf16>
  stg.output
}
