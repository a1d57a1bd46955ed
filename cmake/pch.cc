// Carries the precompiled header (pch.h) that every target of ours reuses.
