//go:build !race

package admission

const modelChecks = "3000"

const raceDetector = false
