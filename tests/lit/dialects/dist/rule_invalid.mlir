// A rule names dims and axes.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0708]: identifier expected, the name of a dim or of an axis,
dist.rule [2] over [tp]

// -----

// CHECK: error[E0709]: `dist.rule`: a rule has dims and axes
dist.rule [] over [tp]

// -----

// CHECK: error[E0709]: `dist.rule`: a rule has dims and axes
dist.rule [S] over []

// -----

// CHECK: error[E0709]: `dist.rule`: an axis that splits has no copies
dist.rule [K] over [tp] copies [tp]
