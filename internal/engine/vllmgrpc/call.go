package vllmgrpc

import (
	"context"
	"errors"

	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/upstream"
)

const methodGenerate = service + "Generate"

var errNoCall = errors.New("calls are not made yet")

// Call implements engine.Dialect.
func (Dialect) Call(_ context.Context, to *upstream.Endpoint, _ *engine.Request) (*upstream.Response, error) {
	base := to.Base()
	return nil, &upstream.Error{Op: upstream.OpRequest, Kind: upstream.KindInvalid, Addr: base.Addr(), Err: errNoCall}
}
