// How attention sees a sequence that a plan splits.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: dist.context "ring" over [cp] rotate "all_to_all" balance "head_tail"
dist.context "ring" over [cp] rotate "all_to_all" balance "head_tail"

// CHECK: dist.context "ulysses" over [a, b] rotate "send_recv" balance "none"
dist.context "ulysses" over [a, b] rotate "send_recv" balance "none"
