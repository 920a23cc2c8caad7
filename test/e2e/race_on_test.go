//go:build race

package e2e

// raceEnabled: the tests are built with the race detector, and so the binary is.
const raceEnabled = true
