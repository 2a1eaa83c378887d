package api

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"hash/fnv"
	"net/url"
	"time"

	"github.com/drover-dev/drover"
)

const (
	cursorVersion = 1
	cursorLife    = 24 * time.Hour
)

// A cursor is, in base64: a version byte, the operation and filter it belongs
// to (4 bytes), when it was made (Unix seconds, 4 bytes), where the next page
// starts, and a checksum (4 bytes). It carries no right: every page is read
// within the caller's tenant.

// makeCursor writes the cursor of the page after last, for the operation and
// query it was asked with.
func makeCursor(op string, q url.Values, last []byte, now time.Time) string {
	b := []byte{cursorVersion}
	b = binary.BigEndian.AppendUint32(b, cursorScope(op, q))
	b = binary.BigEndian.AppendUint32(b, uint32(now.Unix()))
	b = append(b, last...)
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	return base64.RawURLEncoding.EncodeToString(b)
}

// readCursor returns where the page starts. Without a cursor in q it is nil.
func readCursor(op string, q url.Values, now time.Time) ([]byte, error) {
	s := q.Get("cursor")
	if s == "" {
		return nil, nil
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) < 13 || crc32.ChecksumIEEE(b[:len(b)-4]) != binary.BigEndian.Uint32(b[len(b)-4:]) {
		return nil, invalidQuery("cursor", "is not a cursor of this server; pass next_cursor of the page before, unchanged")
	}
	b = b[:len(b)-4]
	made := time.Unix(int64(binary.BigEndian.Uint32(b[5:])), 0)
	switch {
	case b[0] != cursorVersion, now.Sub(made) > cursorLife:
		return nil, &drover.Error{Code: drover.CodeCursorExpired, Detail: "the cursor has expired; ask for the first page again, without a cursor"}
	case binary.BigEndian.Uint32(b[1:]) != cursorScope(op, q):
		return nil, invalidQuery("cursor", "belongs to a list with other filters; keep the filters of the first page, or ask without a cursor")
	}
	return b[9:], nil
}

// cursorScope is a hash of the list a cursor belongs to: all of the query but
// the cursor itself and the size of the page.
func cursorScope(op string, q url.Values) uint32 {
	filters := url.Values{}
	for k, v := range q {
		if k != "cursor" && k != "limit" {
			filters[k] = v
		}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(op + "?" + filters.Encode())) // a hash takes everything
	return h.Sum32()
}

func invalidQuery(name, message string) error {
	return &drover.Error{Code: drover.CodeValidation, Detail: "a parameter of the request is not valid", Fields: []drover.FieldError{{Field: name, Message: message}}}
}
