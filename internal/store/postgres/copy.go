package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/drover-dev/drover/internal/store/driver"
)

// copyFrom is how many rows a batch that only inserts must have to be sent by
// COPY: it takes a round trip of its own, and then less time a row than
// unnest does, since the server makes no row of every array's element first.
const copyFrom = 48

// copies reports whether s is to be sent by COPY.
func copies(s driver.Stmt) bool {
	table, _ := s.Text.Inserts()
	return table != "" && driver.Len(s.Cols) >= copyFrom
}

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// keptBuffer bounds the buffers that are kept for the next batch, in bytes.
const keptBuffer = 4 << 20

// copyIn inserts a batch by COPY.
func copyIn(ctx context.Context, c *pgx.Conn, s driver.Stmt) error {
	table, columns := s.Text.Inserts()
	b := buffers.Get().(*[]byte)
	*b = encodeCopy((*b)[:0], s.Cols)
	tag, err := c.PgConn().CopyFrom(ctx, bytes.NewReader(*b), "COPY "+table+" ("+strings.Join(columns, ", ")+") FROM STDIN BINARY")
	if s.Affected != nil {
		*s.Affected = tag.RowsAffected()
	}
	if err == nil && cap(*b) <= keptBuffer { // after an error its reader may still be at it
		buffers.Put(b)
	}
	return err
}

// encodeCopy appends rows in PostgreSQL's binary COPY format: "PGCOPY\n\377\r\n\0",
// flags, length of the header's extension; of each row the number of columns,
// and of each of them length and value; −1.
func encodeCopy(b []byte, cols []any) []byte {
	b = append(b, "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"...)
	sized := func(n int) { b = binary.BigEndian.AppendUint32(b, uint32(n)) }
	for i := range driver.Len(cols) {
		b = binary.BigEndian.AppendUint16(b, uint16(len(cols)))
		for _, c := range cols {
			switch c := c.(type) {
			case []int16:
				sized(2)
				b = binary.BigEndian.AppendUint16(b, uint16(c[i]))
			case []int32:
				sized(4)
				b = binary.BigEndian.AppendUint32(b, uint32(c[i]))
			case []int64:
				sized(8)
				b = binary.BigEndian.AppendUint64(b, uint64(c[i]))
			case [][16]byte:
				sized(16)
				b = append(b, c[i][:]...)
			case []string:
				sized(len(c[i]))
				b = append(b, c[i]...)
			case [][]byte:
				if c[i] == nil {
					b = append(b, 0xff, 0xff, 0xff, 0xff)
					continue
				}
				sized(len(c[i]))
				b = append(b, c[i]...)
			default:
				panic(fmt.Sprintf("a batch column of type %T", c))
			}
		}
	}
	return append(b, 0xff, 0xff)
}
