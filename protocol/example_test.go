package protocol_test

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

// A refusal keeps its kind on its way over the wire.
func ExampleFromError() {
	sent, _ := json.Marshal(protocol.FromError(drover.Errorf(drover.CodeNotFound, "there is no queue mail")))
	fmt.Println(string(sent))

	var p protocol.Problem
	_ = json.Unmarshal(sent, &p)
	fmt.Println(errors.Is(p.ToError(), drover.ErrNotFound))
	// Output:
	// {"type":"urn:drover:problem:not-found","title":"There is no such thing","status":404,"detail":"there is no queue mail","code":"not-found","retryable":false}
	// true
}
