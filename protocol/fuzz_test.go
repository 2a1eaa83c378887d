package protocol_test

import (
	"encoding/json"
	"testing"

	"github.com/drover-dev/drover/protocol"
)

// FuzzProblem reads anything as a problem: the error it stands for has a code
// and a text, and told again it is the same.
func FuzzProblem(f *testing.F) {
	f.Add([]byte(`{"type":"urn:drover:problem:validation","status":400,"code":"validation","detail":"x","errors":[{"field":"a","message":"b"}]}`))
	f.Add([]byte(`{"status":-1}`))
	f.Add([]byte(`{"status":503,"retry_after":"-1s"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var p protocol.Problem
		if json.Unmarshal(b, &p) != nil {
			return
		}
		e := p.ToError()
		if e == nil || e.Code == "" || e.Error() == "" {
			t.Fatalf("%s stands for %#v", b, e)
		}
		told := protocol.FromError(e).ToError() // what has no words of its own is given some, and a fault of the server has no others
		if again := protocol.FromError(told).ToError(); told.Code != e.Code || len(told.Fields) != len(e.Fields) || again.Code != told.Code || again.Detail != told.Detail {
			t.Errorf("%+v became %+v, then %+v", e, told, again)
		}
	})
}
