package explain

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/drover-dev/drover"
)

// Clock is a time as messages have it.
func Clock(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

// Long is a duration as messages have it: "3m12s", "1.2s", "2d4h".
func Long(d time.Duration) string {
	switch {
	case d <= 0:
		return "0s"
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < 48*time.Hour:
		s := d.Round(time.Second).String()
		if strings.HasSuffix(s, "m0s") {
			s = strings.TrimSuffix(s, "0s")
		}
		if strings.HasSuffix(s, "h0m") {
			s = strings.TrimSuffix(s, "0m")
		}
		return s
	}
	h := int(d.Round(time.Hour) / time.Hour)
	return fmt.Sprintf("%dd%dh", h/24, h%24)
}

// Count reads "1 worker", "3 workers".
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return Thousands(n) + " " + many
}

// Thousands writes a number with commas.
func Thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Nth reads "1st", "12th".
func Nth(n int) string {
	end := "th"
	if n%100 < 11 || n%100 > 13 {
		switch n % 10 {
		case 1:
			end = "st"
		case 2:
			end = "nd"
		case 3:
			end = "rd"
		}
	}
	return Thousands(n) + end
}

// Short cuts what others wrote to what a sentence can hold, on one line.
func Short(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	const most = 120
	if len(s) <= most {
		return s
	}
	cut := s[:most]
	for !utf8.ValidString(cut) {
		cut = cut[:len(cut)-1]
	}
	return cut + "…"
}

// word is s as one word of a command in a shell.
func word(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.,:/@%+=") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// positional is s as a word that is no flag.
func positional(s string) string {
	if strings.HasPrefix(s, "-") {
		return "-- " + word(s)
	}
	return word(s)
}

// Spend puts the pieces of a task's time one after the other: each begins where the
// one before ended, and those that took none are left out.
type Spend struct {
	at   time.Time
	list []drover.Spent
}

// From begins at a time.
func From(t time.Time) *Spend { return &Spend{at: t} }

// Until says what the time was spent on up to t.
func (s *Spend) Until(t time.Time, code string) *drover.Spent {
	if !t.After(s.at) {
		return nil
	}
	s.list = append(s.list, drover.Spent{Code: code, From: s.at, To: t, Duration: drover.Duration(t.Sub(s.at))})
	s.at = t
	return &s.list[len(s.list)-1]
}

// List returns the pieces; those of one code that follow each other are one, but for runs.
func (s *Spend) List() []drover.Spent {
	out := []drover.Spent{}
	for _, p := range s.list {
		if n := len(out); n > 0 && out[n-1].Code == p.Code && p.Code != "run" {
			out[n-1].To, out[n-1].Duration = p.To, out[n-1].Duration+p.Duration
			continue
		}
		out = append(out, p)
	}
	return out
}
