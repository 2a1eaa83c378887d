package engine

import "strings"

// clearText makes text storable everywhere: valid UTF-8 without NUL.
func clearText(s string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "�"), "�")
}
