package engine

import (
	"context"

	"github.com/sluice-router/sluice/internal/kv/events"
	"github.com/sluice-router/sluice/internal/upstream"
)

// KVEventsPath implements Prober: newer engines have it.
func (VLLM) KVEventsPath(*Facts) string { return "/kv_event_sources" }

// ReadKVEvents implements Prober.
func (VLLM) ReadKVEvents(host string, answer []byte) ([]events.Source, error) {
	return events.VLLMSources(host, answer)
}

// KVEventsPath implements Prober.
func (SGLang) KVEventsPath(f *Facts) string { return f.InfoPath }

// ReadKVEvents implements Prober.
func (SGLang) ReadKVEvents(host string, answer []byte) ([]events.Source, error) {
	return events.SGLangSources(host, answer)
}

// KVEventsPath implements Prober.
func (HTTP) KVEventsPath(*Facts) string { return "" }

// ReadKVEvents implements Prober.
func (HTTP) ReadKVEvents(string, []byte) ([]events.Source, error) { return nil, events.ErrNoSources }

// PushesKVEvents implements Prober.
func (HTTP) PushesKVEvents() bool { return false }

// SubscribeKVEvents implements Prober.
func (HTTP) SubscribeKVEvents(context.Context, *upstream.Endpoint) (events.Subscription, error) {
	return nil, events.ErrNoSources
}
