// The IR between passes, and their times, are those of this tool's passes.
// RUN: stagec-opt %S/inputs/tiny.stg -p 'propagate-shardings,localize-shapes' --print-between-passes --time-passes | filecheck %s

// CHECK:      Pass propagate-shardings took {{.*}} seconds
// CHECK-NEXT: // IR after propagate-shardings:
// CHECK-NEXT: builtin.module {
// CHECK:      Pass localize-shapes took {{.*}} seconds
