//go:build race

package engine_test

// raceDetector says that SQLite, which is Go code, runs many times slower.
const raceDetector = true
