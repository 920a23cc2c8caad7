//go:build race

package admission

// modelChecks is smaller here: the race detector makes them ten times slower,
// and the core has no goroutines.
const modelChecks = "300"

const raceDetector = true
