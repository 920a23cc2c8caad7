// Package pattern has the regular expressions of tokenizers: in the dialect of the reference,
// which is Oniguruma's for Ruby, with the reference's view of Unicode ([Ranges] in table.go).
//
// Go's own expressions do not look ahead, and the patterns of all current models do.
// A search goes back where it must, and is bounded by steps ([Machine]).
//
// Read parse.go first, from an expression to its parts; then compile.go, from these to
// instructions; then machine.go, which follows them. set.go has sets of characters.
package pattern
