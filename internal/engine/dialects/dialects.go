// Package dialects has all engines that sluice speaks to. It is apart from package engine so
// that dialects with libraries of their own can be packages of their own.
package dialects

import (
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/engine/vllmgrpc"
)

// All has the dialects.
func All() *engine.Registry {
	return engine.NewRegistry(engine.SGLang{}, engine.VLLM{}, vllmgrpc.Dialect{})
}
