// A pool is listed once, has ranks, and runs something.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.towers`: each pool is listed once
dist.towers ["text" 1 ["L"], "text" 4 ["M"]]

// -----

// CHECK: error[E0709]: `dist.towers`: a pool has ranks, and repeats that it runs
dist.towers ["vision" 0 ["LV"], "text" 4 ["L"]]

// -----

// CHECK: error[E0709]: `dist.towers`: a pool has ranks, and repeats that it runs
dist.towers ["vision" 1 [], "text" 4 ["L"]]
