//go:build race

package sim

// raceDetector says that SQLite, which is Go code, runs many times slower.
const raceDetector = true
