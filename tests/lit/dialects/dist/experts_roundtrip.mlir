// Which pool has the experts, with some modules, and which everything else.
// RUN: stagec-opt %s --split-input-file | stagec-opt - --split-input-file | filecheck %s

// CHECK: dist.experts on "experts" others on "attention"
dist.experts on "experts" others on "attention"

// -----

// CHECK: dist.experts with [Shared, Router] on "experts" others on "attention"
dist.experts with [Shared, Router] on "experts" others on "attention"
