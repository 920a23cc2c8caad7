package vllmgrpc

import (
	"strings"

	"github.com/sluice-router/sluice/internal/upstream"
)

const maxStatusMessage = 8 << 10 // bytes

func messageOf(st *upstream.StatusError) string {
	if st.Message == "" {
		return "the engine answered with status " + st.Name
	}
	return strings.ToValidUTF8(st.Message[:min(len(st.Message), maxStatusMessage)], "\uFFFD")
}
