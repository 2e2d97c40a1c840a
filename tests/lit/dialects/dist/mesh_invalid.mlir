// An axis has one size, of one device at least.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.mesh`: an axis appears twice
dist.mesh <dp = 2, dp = 4>

// -----

// CHECK: error[E0709]: `dist.mesh`: axis `tp` has size 0
dist.mesh <dp = 2, tp = 0>
