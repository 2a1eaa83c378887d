package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"regexp"
)

type traceKey struct{}

// traceOf returns the trace id of the request that ctx belongs to.
func traceOf(ctx context.Context) string {
	s, _ := ctx.Value(traceKey{}).(string)
	return s
}

var (
	traceparent = regexp.MustCompile(`^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?$`)
	requestID   = regexp.MustCompile(`^[A-Za-z0-9._:/+=@-]{1,128}$`)
)

// parentOf returns a W3C traceparent header if it is valid and of the version
// that the engine knows, and "" otherwise.
func parentOf(header string) string {
	if m := traceparent.FindStringSubmatch(header); m == nil || m[1] != "00" || m[2] != traceID(header) {
		return ""
	}
	return header
}

// traceID returns the trace id of a W3C traceparent header, or a new one when
// there is none that is valid.
func traceID(header string) string {
	m := traceparent.FindStringSubmatch(header)
	if m == nil || m[1] == "ff" || m[1] == "00" && m[4] != "" || allZero(m[2]) || allZero(m[3]) {
		var b [16]byte
		rand.Read(b[:]) // never fails
		return hex.EncodeToString(b[:])
	}
	return m[2]
}

func allZero(s string) bool {
	for i := range len(s) {
		if s[i] != '0' {
			return false
		}
	}
	return true
}
