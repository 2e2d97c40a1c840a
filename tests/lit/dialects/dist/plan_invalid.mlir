// Clauses have names.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0708]: {{.*}}batch
dist.plan "fsdp" {} at {}

// -----

// CHECK: error[E0709]: `dist.plan`
"dist.plan"() <{plan_name = "p", batch = "B", clauses = {}}> : () -> ()
