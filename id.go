package drover

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// ID is a 128-bit, time-ordered identifier: a ULID (https://github.com/ulid/spec),
// 48 bits of Unix milliseconds followed by 80 random bits. The zero value names
// nothing.
type ID [16]byte

// MakeID builds an ID from a time in Unix milliseconds and 80 bits of entropy.
func MakeID(unixMilli int64, entropy [10]byte) ID {
	var id ID
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(unixMilli))
	copy(id[:6], ms[2:])
	copy(id[6:], entropy[:])
	return id
}

// IsZero reports whether id names nothing.
func (id ID) IsZero() bool { return id == ID{} }

// UnixMilli returns the time part, in Unix milliseconds.
func (id ID) UnixMilli() int64 {
	return int64(binary.BigEndian.Uint64(append([]byte{0, 0}, id[:6]...)))
}

const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

var crockfordValue = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xFF
	}
	for i := range len(crockford) {
		c := crockford[i]
		t[c] = byte(i)
		if c >= 'A' {
			t[c+'a'-'A'] = byte(i)
		}
	}
	return t
}()

// String returns the 26 characters of the ULID, without a prefix.
func (id ID) String() string { return string(id.appendText(nil)) }

func (id ID) appendText(b []byte) []byte {
	hi, lo := binary.BigEndian.Uint64(id[:8]), binary.BigEndian.Uint64(id[8:])
	for shift := 125; shift >= 0; shift -= 5 {
		var v uint64
		switch {
		case shift >= 64:
			v = hi >> (shift - 64)
		case shift > 59:
			v = hi<<(64-shift) | lo>>shift
		default:
			v = lo >> shift
		}
		b = append(b, crockford[v&31])
	}
	return b
}

// parseID reads "<prefix><26 characters>".
func parseID(prefix, s string) (ID, error) {
	var id ID
	bad := func() (ID, error) {
		return ID{}, fmt.Errorf("%q is not an id of the form %s01ARZ3NDEKTSV4RRFFQ69G5FAV", clip(s, 40), prefix)
	}
	if len(s) != len(prefix)+26 || s[:len(prefix)] != prefix {
		return bad()
	}
	t := s[len(prefix):]
	if t[0] > '7' { // 26 characters hold 130 bits; the first may carry only three
		return bad()
	}
	var hi, lo uint64
	for i := range 26 {
		v := crockfordValue[t[i]]
		if v == 0xFF {
			return bad()
		}
		hi = hi<<5 | lo>>59
		lo = lo<<5 | uint64(v)
	}
	binary.BigEndian.PutUint64(id[:8], hi)
	binary.BigEndian.PutUint64(id[8:], lo)
	return id, nil
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "…"
}

// JobID names a job; on the wire "job_" and a ULID.
type JobID ID

// TaskID names a task; on the wire "task_" and a ULID.
type TaskID ID

// ArtifactID names an artifact; on the wire "art_" and a ULID.
type ArtifactID ID

// TokenID names an API token; on the wire "tok_" and a ULID.
type TokenID ID

// ParseJobID reads "job_01J…". Upper and lower case are equal.
func ParseJobID(s string) (JobID, error) { id, err := parseID("job_", s); return JobID(id), err }

// ParseTaskID reads "task_01J…".
func ParseTaskID(s string) (TaskID, error) { id, err := parseID("task_", s); return TaskID(id), err }

// ParseArtifactID reads "art_01J…".
func ParseArtifactID(s string) (ArtifactID, error) {
	id, err := parseID("art_", s)
	return ArtifactID(id), err
}

// ParseTokenID reads "tok_01J…".
func ParseTokenID(s string) (TokenID, error) { id, err := parseID("tok_", s); return TokenID(id), err }

// String returns the wire form; the zero id is the empty string.
func (id JobID) String() string { return wire("job_", ID(id)) }

// String returns the wire form; the zero id is the empty string.
func (id TaskID) String() string { return wire("task_", ID(id)) }

// String returns the wire form; the zero id is the empty string.
func (id ArtifactID) String() string { return wire("art_", ID(id)) }

// String returns the wire form; the zero id is the empty string.
func (id TokenID) String() string { return wire("tok_", ID(id)) }

func wire(prefix string, id ID) string {
	if id.IsZero() {
		return ""
	}
	return string(id.appendText([]byte(prefix)))
}

// IsZero reports whether id names nothing.
func (id JobID) IsZero() bool { return ID(id).IsZero() }

// IsZero reports whether id names nothing.
func (id TaskID) IsZero() bool { return ID(id).IsZero() }

// IsZero reports whether id names nothing.
func (id ArtifactID) IsZero() bool { return ID(id).IsZero() }

// MarshalText writes the wire form.
func (id JobID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// MarshalText writes the wire form.
func (id TaskID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// MarshalText writes the wire form.
func (id ArtifactID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// MarshalText writes the wire form.
func (id TokenID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads the wire form; the empty string is the zero id.
func (id *JobID) UnmarshalText(b []byte) error { return unwire("job_", b, (*ID)(id)) }

// UnmarshalText reads the wire form; the empty string is the zero id.
func (id *TaskID) UnmarshalText(b []byte) error { return unwire("task_", b, (*ID)(id)) }

// UnmarshalText reads the wire form; the empty string is the zero id.
func (id *ArtifactID) UnmarshalText(b []byte) error { return unwire("art_", b, (*ID)(id)) }

// UnmarshalText reads the wire form; the empty string is the zero id.
func (id *TokenID) UnmarshalText(b []byte) error { return unwire("tok_", b, (*ID)(id)) }

func unwire(prefix string, b []byte, to *ID) error {
	if len(b) == 0 {
		*to = ID{}
		return nil
	}
	id, err := parseID(prefix, string(b))
	if err != nil {
		return err
	}
	*to = id
	return nil
}

// String returns the wire form, such as "wrk_42".
func (id SessionID) String() string { return fmt.Sprintf("wrk_%d", int64(id)) }

// ParseSessionID reads "wrk_42".
func ParseSessionID(s string) (SessionID, error) {
	n, ok := strings.CutPrefix(s, "wrk_")
	v, err := strconv.ParseInt(n, 10, 64)
	if !ok || err != nil || v <= 0 {
		return 0, fmt.Errorf("%q is not a worker id of the form wrk_42", clip(s, 40))
	}
	return SessionID(v), nil
}

// MarshalText writes the wire form.
func (id SessionID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads the wire form.
func (id *SessionID) UnmarshalText(b []byte) error {
	v, err := ParseSessionID(string(b))
	if err == nil {
		*id = v
	}
	return err
}
