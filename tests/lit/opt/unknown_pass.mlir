// A misspelt pass is answered with the one that was meant.
// RUN: not stagec-opt %s -p 'lower-to-taks' 2>&1 | filecheck %s

// CHECK:      error[E0704]: there is no pass `lower-to-taks`
// CHECK-NEXT:   = help: did you mean `lower-to-tasks`?
