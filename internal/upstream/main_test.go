package upstream

import (
	"io"
	"log"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// discardLog silences a server whose clients misbehave on purpose.
func discardLog() *log.Logger { return log.New(io.Discard, "", 0) }
