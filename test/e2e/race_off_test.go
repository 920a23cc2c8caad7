//go:build !race

package e2e

// raceEnabled: see the file for builds with the race detector.
const raceEnabled = false
