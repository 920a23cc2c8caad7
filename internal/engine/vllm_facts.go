package engine

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
)

// Owns implements Prober.
func (d VLLM) Owns(ownedBy string) bool { return ownedBy == d.Name() }

// SignPath implements Prober: /server_info is there in the development mode only.
func (VLLM) SignPath() string { return "" }

// Recognizes implements Prober.
func (VLLM) Recognizes(path string, answer Fields) bool {
	return strings.HasPrefix(path, serverInfoPath) && answer["vllm_config"] != nil
}

// ReadFacts implements Prober.
func (d VLLM) ReadFacts(q *Inquiry) {
	q.TryRead(q.Facts.readVLLMInfo, serverInfoPath+"?config_format=json")
	if !q.Elsewhere(d) {
		q.Read(q.Facts.readVersion, "/version")
	}
}

// readVLLMInfo reads an answer of /server_info.
func (f *Facts) readVLLMInfo(answer []byte) error {
	var o Fields
	if err := json.Unmarshal(answer, &o); err != nil {
		return err
	}
	f.Fingerprint = fingerprintOf(answer)
	c := o.Object("vllm_config")
	f.MaxRunningRequests = c.Object("scheduler_config").Amount("max_num_seqs")
	f.ChunkedPrefillSize = c.Object("scheduler_config").Amount("max_num_batched_tokens")
	transfer, told := c["kv_transfer_config"]
	switch {
	case told && string(transfer) == "null":
		f.Connector = ConnectorNone
	case told:
		f.Connector = vllmConnectors.Named(c.Object("kv_transfer_config").Str("kv_connector"))
	}
	return nil
}

// readVersion reads an answer of /version.
func (f *Facts) readVersion(answer []byte) error {
	var o Fields
	if err := json.Unmarshal(answer, &o); err != nil {
		return err
	}
	if f.Version = o.Str("version"); f.Version == "" {
		return errors.New("it contains no version")
	}
	return nil
}

// Changed implements Prober: by the list of models. The metrics, which are read with
// each check, have the start time of the process.
func (d VLLM) Changed(ctx context.Context, ask Ask, before *Facts) bool {
	return d.HTTP.Changed(ctx, ask, before)
}

// AlivePath implements Prober: the route answers at once, and 503 when the engine
// behind it has died.
func (VLLM) AlivePath() string { return "/health" }

// RefusesUnlisted implements Prober.
func (VLLM) RefusesUnlisted() bool { return true }
